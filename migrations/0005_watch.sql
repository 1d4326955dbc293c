-- The place in a distributed trace that a call belongs under (W3C traceparent), so that the process that runs it goes on with the
-- trace of the request that asked for it. Null for calls of older binaries, and where nobody records traces.
ALTER TABLE calls ADD COLUMN traceparent text;
ALTER TABLE calls ADD CONSTRAINT calls_traceparent_length CHECK (octet_length(traceparent) <= 55);
