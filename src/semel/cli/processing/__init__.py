"""`semel process`: events of files and of standard input, through the flow of an app."""
