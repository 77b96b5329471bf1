"""Where deliveries come from; one package for each transport."""
