"""The critic and the reward model as a service: what travels, who asks, who answers.

``wire``, ``client`` and ``replicas`` load no torch; import what you need from the modules.
"""
