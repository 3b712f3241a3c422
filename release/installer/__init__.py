"""What runs inside the self-contained archive, on the machine that Tranche is installed on."""
