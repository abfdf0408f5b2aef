"""What serving costs: speed of requests, throughput, capacity and cost, measured and worked out apart."""
