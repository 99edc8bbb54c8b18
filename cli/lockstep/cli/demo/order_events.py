"""The messages of the demo: orders, each with ten events in a fixed order."""

SHIPMENTS = 4
STEPS = (
    "created",
    "paid",
    *(f"shipped {number}" for number in range(1, SHIPMENTS + 1)),
    *(f"received {number}" for number in range(1, SHIPMENTS + 1)),
)
"""An order is created and paid, its four shipments are shipped and then received: 10 events, so 2,000 orders make 20,000."""
TOPIC = "demo-orders"
GROUP = "demo-billing"
