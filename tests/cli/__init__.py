"""The command line: words, screens, the client's sentences, and every command's contract."""
