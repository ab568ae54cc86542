"""For people with their own images: the classifier, its file, its service, export, packaged networks."""
