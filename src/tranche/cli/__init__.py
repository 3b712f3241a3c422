"""The command `tranche`: one module per noun. Commands parse, call the layers below, and print."""

import gc

# Most commands end before there is garbage worth looking for, and importing makes none. The searches would take a tenth of a
# command's time, half of that while modules are imported: so this comes before them.
gc.set_threshold(50_000)
