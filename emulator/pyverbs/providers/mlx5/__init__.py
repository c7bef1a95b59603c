"""Extensions of ConnectX devices: the names that portable programs import."""
