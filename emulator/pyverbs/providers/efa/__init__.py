"""Extensions of Elastic Fabric Adapters: the names that portable programs import."""
