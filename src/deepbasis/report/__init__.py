"""How well a model predicts a table, as one page of HTML."""
