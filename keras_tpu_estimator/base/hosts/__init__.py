"""The processes of one program: how they find each other, and agree."""
