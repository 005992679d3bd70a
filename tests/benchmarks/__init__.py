"""How fast the program is beside other ways to do the same, and how much memory it takes (`make bench`)."""
