"""`python -m chargeback`."""

from chargeback.cli import main

if __name__ == "__main__":
    main()
