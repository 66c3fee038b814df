"""What `spark-submit` is given where `tailrace` itself would be typed: spark-submit … submit.py run pipeline.yml"""

import sys

from tailrace.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
