"""The files that training writes, and the code that reads them."""
