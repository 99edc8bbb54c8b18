"""The story that the demo tells: orders, each with ten events in a fixed order."""

PARCELS = 4
STEPS = (
    "created",
    "paid",
    *(f"shipped {parcel}" for parcel in range(1, PARCELS + 1)),
    *(f"received {parcel}" for parcel in range(1, PARCELS + 1)),
)
"""An order is created and paid, its four parcels are shipped and then received: 10 events, so 2,000 orders make 20,000."""
TOPIC = "demo-orders"
GROUP = "demo-billing"
