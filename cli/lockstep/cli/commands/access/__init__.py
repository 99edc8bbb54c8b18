"""The commands of who may use a cluster: certificates and first users, the file of users and their rights, and stored logins."""
