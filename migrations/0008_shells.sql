-- Shells, and the way from any API process to the worker that has a session.

-- Where the worker's internal listener is, `host:port`; null when it has none. A process that was started by an older binary has none.
ALTER TABLE workers ADD COLUMN internal_address text,
    ADD CONSTRAINT workers_internal_address_short CHECK (octet_length(internal_address) <= 300);
