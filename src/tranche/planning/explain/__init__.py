"""Why a request starts or waits, and what would help."""
