"""What a run would need and do on devices that need not be there."""
