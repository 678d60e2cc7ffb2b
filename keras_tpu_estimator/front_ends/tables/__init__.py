"""Tables over all cores, of which a step touches only the rows it uses."""
