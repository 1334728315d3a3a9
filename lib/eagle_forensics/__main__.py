"""`python -m eagle_forensics` is `eagle-forensics`."""

from eagle_forensics.cli import main

if __name__ == "__main__":
    main()
