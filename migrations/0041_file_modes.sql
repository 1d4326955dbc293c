-- What the permission bits of a file were before a change that set others, so that undoing it gives them back. Null when a change left
-- them alone, or is of a release before.
ALTER TABLE file_versions ADD COLUMN before_mode integer;
