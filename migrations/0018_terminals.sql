-- Shells with a terminal in the place of pipes.

ALTER TABLE shells ADD COLUMN terminal boolean NOT NULL DEFAULT false;
