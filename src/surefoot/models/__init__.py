"""Language models as policy, critic, reference and reward. Importing the package loads no torch."""

import logging

# peft imports bitsandbytes wherever it is installed; on some CPUs that warns of a kernel, which nothing here would use.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
