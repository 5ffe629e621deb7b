"""What a plan is: mapping, table, picture and file."""
