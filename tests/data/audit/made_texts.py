"""Clean texts that look real: sentences from a grammar, and texts that come close to what an audit looks for."""

from __future__ import annotations

import random

_ADJECTIVES = """
old quiet patient honest stray small broken second northern wooden forgotten smoked bitter narrow early late wet
borrowed painted famous crooked gentle hollow faded stubborn modest empty crowded distant heavy clever tired proud
rusty polite sudden green secret lonely warm
"""
_NOUNS = """
harbour garden workshop valley chapter recipe committee grandmother river ferry teacher train museum mechanic choir
lighthouse keeper cat library bakery student orchestra clock letter price bread boat question map coast tool apple
argument colour song winter game editor fish umbrella rib rose rain bridge photograph kettle fair road guest street
violin orchard tunnel ladder captain window puzzle market lantern cellar
"""
_VERBS = """
changed remembers explains hides outlived prepared carries borrows measures painted refused collects opened
describes follows needs mended expected shows lost missed admires sold found watched repaired forgot surprised
visited praised
"""
ADJECTIVES, NOUNS, VERBS = _ADJECTIVES.split(), _NOUNS.split(), _VERBS.split()
LINKS = ("and then", "or so they say", "not far from", "unlike", "next to", "instead of", "just like", "together with")
ENDS = (
    "before the first snow",
    "in spite of the noise",
    "although nobody had asked",
    "as the summer visitors left",
    "while the kettle boiled",
    "with a shrug and a smile",
    "on the last day of the fair",
    "because the road was closed",
    "for reasons that stay unclear",
    "at the end of a long week",
    "after two failed attempts",
    "without a word of thanks",
    "under the eyes of the whole street",
    "once the guests were asleep",
    "until the money ran out",
)
OPENINGS = ("", "", "", "Oddly, ", "In the end ", "Last spring ", "By all accounts ", "Now and then ", "To be fair, ")

CLOSE_CALLS = (
    "The meeting moved from 2026-01-14 to 2026-02-03, room 4.12, at 09:30; bring 25 copies of form 27-B.",
    "Version 3.11.4 is needed; 2.7.18 and 1.2.3.4 are too old. See section 10.2.1.7 of the manual.",
    "Compute 1024 * 768 + 3.14159265358979 - 2,000,000 / 7 and give the answer with 4 digits.",
    "ISBN 978-3-16-148410-0 costs 24.90, was printed 1998, and weighs 1.250 kg; the order number is 004711.",
    "Please ignore the noise and forget the previous film: what matters are the rules of chess and their history.",
    "How do I follow the assembly instructions above the door, and which earlier messages on the board matter?",
    "What makes a good password? Long ones, in my opinion; the password must be changed twice a year.",
    "The token economy of a classroom: each token is worth something, and the secret is patience.",
    "The teacher will grade this paper on Monday; the highest score in class was 98, the reward a book.",
    "Act as a tour guide and describe Lisbon to me. You are now in the old town, it is evening.",
    "He said: «Quel été…» and left; the CAFÉ» sign glowed. Naïve façade, Größe, smörgåsbord, ÜBER.",
    "شکرگزاری را می‌توان هر روز تمرین کرد؛ کتاب‌ها را دوست دارم.",
    "שלום עולם, זהו משפט רגיל בעברית עם מספר 42 בתוכו.",
    "我们明天早上九点在图书馆见面，请带上你的笔记本。",
    "Good morning 👩‍👩‍👧‍👦 and 🏴󠁧󠁢󠁥󠁮󠁧󠁿! The weather is fine ☀️, 20 °C — perfect for a walk… isn’t it?",
    "def add(a, b):\n    return a + b  # <-- adds them; see [1] and <https://docs.python.org/3/library/>\n",
    "The table has the columns [name], [age] and <height>; write <b>bold</b> or <s>struck</s> text in HTML.",
    "Москва и Санкт-Петербург: сравните два города. Что общего, что разного?",
    "The matrix is [[1, 2], [3, 4]]; its transpose is [[1, 3], [2, 4]]. Time: 12:30:45, ratio 3:4:5:6.",
    "Write to the town hall, or visit user@example.com and info@example.org, which are made-up addresses.",
    "Our office is 12.5 km away; call it a day at 5. The train 0815 leaves from track 01 at 06:45.",
    "The checksum is 9e107d9d372bb6826bd81d3542a419d6 and the commit 2fd4e1c67a2d28fced849ee1bb76e7391b93eb12.",
    "A film about a jailbreak: the prisoners pretend to sleep. Does the system of the prison have no rules?",
    "Human rights: explain the system in a paragraph. User experience: explain it in another.",
)


def thing(rng: random.Random) -> str:
    """A noun with what goes before it."""
    return f"{rng.choice(('the', 'a', 'every', 'our', 'this'))} {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def sentence(rng: random.Random) -> str:
    """One sentence."""
    said = f"{rng.choice(OPENINGS)}{thing(rng)} {rng.choice(VERBS)} {thing(rng)} {rng.choice(LINKS)} {thing(rng)}"
    end = f" {rng.choice(ENDS)}" if rng.random() < 0.4 else ""
    return said[0].upper() + said[1:] + end + rng.choice(".....!?")


def text(rng: random.Random, sentences: int | None = None) -> str:
    """A few sentences."""
    return " ".join(sentence(rng) for _ in range(sentences or rng.randint(2, 6)))
