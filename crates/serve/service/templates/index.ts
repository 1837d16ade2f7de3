// NAME: makes a process nicer, one step a tick, as long as its grant allows it. Change this.
//
// Handles come in the order of the --grant options.

/** Reads an attribute to this address. 0 or a negative error. */
@external("orbit", "get")
declare function get(handle: u64, value: usize): i64;
/** Asks for a value: the guard passes it, clamps it or refuses it. 0 or a negative error. */
@external("orbit", "set")
declare function set(handle: u64, value: i64): i64;

// struct orbit_context and struct orbit_event of orbit_service.h.
const HANDLES: usize = 12;
const HANDLE: usize = 16;
const KIND: usize = 0;

const TIMER: u32 = 1;
const NICE: u32 = 0;

const value = memory.data(8);

export function orbit_handler(context: usize, event: usize): void {
  if (load<u32>(event, KIND) != TIMER || load<u32>(context, HANDLES) <= NICE) return;
  const handle = load<u64>(context + HANDLE + (NICE as usize) * 8);
  if (get(handle, value) == 0) set(handle, load<i64>(value) + 1);
}
