"""For tests of your own: minds that say what they are told or fail as told, and what every executor must do."""
