"""The command line. One file a group of commands; they parse, call the library and print, nothing more."""
