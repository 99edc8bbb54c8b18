"""The whole cluster under a virtual clock: simulator, checkers, sweep, and `TestCluster` for users."""
