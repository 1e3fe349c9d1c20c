//! The hub's training core: pure functions of (state, event, now). Actions come out; sockets, disk and clocks are elsewhere.
