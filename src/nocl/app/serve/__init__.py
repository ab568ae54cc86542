"""A model as a service: predictions while it learns, learning that survives a kill, and a web page.

``store`` keeps the model durable and needs no web framework; ``app`` and ``server`` need the extra ``serve``.
"""
