"""What programs are made of: runs, their files, pictures, reports, flags."""
