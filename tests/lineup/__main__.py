import sys

from tests.lineup.run import main

if __name__ == "__main__":
    sys.exit(main())
