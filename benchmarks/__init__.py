"""What is measured against whom: problems, peers, cells, and the tables made of them."""
