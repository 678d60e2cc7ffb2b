"""Looks for garbage less often in the processes that tests start.

While modules are imported there is little, and none of these lives for long.
"""

import gc

gc.set_threshold(50_000, 20, 100)
