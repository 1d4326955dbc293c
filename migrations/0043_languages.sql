-- What a context's interpreters speak. A context of a release before, or made by one beside this, is Python's.
ALTER TABLE contexts ADD COLUMN language text NOT NULL DEFAULT 'python'
    CONSTRAINT contexts_language_known CHECK (language IN ('python', 'javascript'));
