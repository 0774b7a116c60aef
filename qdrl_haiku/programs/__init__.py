"""Makes programs: runs, their files, pictures, reports, flags."""
