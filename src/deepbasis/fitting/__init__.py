"""How a fit is decided and run: `Spec` (what was asked) -> `Plan` (what is done) -> `Fitted` (what came of it)."""
