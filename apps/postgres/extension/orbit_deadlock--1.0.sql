-- What the detector does now and did so far.
CREATE FUNCTION orbit_deadlock_status(
    OUT run_in text, OUT worker_pid int, OUT orbit_pid int, OUT scans bigint, OUT calls bigint, OUT failed_calls bigint,
    OUT crashes bigint, OUT deadlocks_broken bigint, OUT cycles_refuted bigint, OUT last_call_us bigint,
    OUT snapshot_bytes bigint, OUT last_scan timestamptz, OUT last_call timestamptz, OUT last_deadlock timestamptz,
    OUT last_event_at timestamptz, OUT last_event text)
RETURNS record LANGUAGE C STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'orbit_deadlock_status';

CREATE VIEW orbit_deadlock AS SELECT * FROM orbit_deadlock_status();

-- Has the next calls of the detector do harm: segv, hang, memory, recursion, kill, lie, assert. For tests; superusers only, with
-- orbit_deadlock.faults = on.
CREATE FUNCTION orbit_deadlock_fault(kind text, calls int DEFAULT 1)
RETURNS text LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'orbit_deadlock_fault';
REVOKE ALL ON FUNCTION orbit_deadlock_fault(text, int) FROM PUBLIC;
