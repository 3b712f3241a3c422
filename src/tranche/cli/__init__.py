"""The command `tranche`: one module per noun. Commands parse, call the layers below, and print."""
