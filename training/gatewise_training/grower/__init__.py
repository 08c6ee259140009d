"""Growing classification trees under a price: BudgetRF's minimax splits, and cost-aware entropy."""
