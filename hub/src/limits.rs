//! Sizes, capacities and waits of the hub. Each says what happens at the limit.

use std::time::Duration;

/// How often an agent sends a heartbeat.
pub const HEARTBEAT: Duration = Duration::from_secs(5);

/// Heartbeat periods without a byte from an agent after which it is lost: its work is issued again.
pub const HEARTBEATS_MISSED_MAX: u32 = 3;

/// Longest silence of the hub towards an agent before it sends a WebSocket ping. Below 20 s, since proxies cut sockets that
/// are idle for 30 s.
pub const PING_EVERY: Duration = Duration::from_secs(15);

/// Time for the first frame of a connection; after it the connection is closed.
pub const HANDSHAKE_WAIT: Duration = Duration::from_secs(5);

/// Time without one byte taken by a peer that has bytes waiting; after it the connection is closed.
pub const STALL_MAX: Duration = Duration::from_secs(30);

/// Time to say goodbye: for a close frame to reach the peer and for its answer.
pub const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// Encoded bytes that may wait for one agent. At the limit the agent is closed as too slow; large parameter streams do not
/// count, since they are encoded piece by piece while they are sent.
pub const OUTBOUND_BYTES_MAX: usize = 8 << 20;

/// Messages and streams that may wait for one agent. At the limit the agent is closed as too slow.
pub const OUTBOUND_ITEMS_MAX: usize = 256;

/// Parameter streams up to this size are encoded once and shared by all agents.
pub const SHARED_STREAM_BYTES_MAX: u64 = 4 << 20;

/// Messages of agents that wait for the job task. When full, connections stop reading, so that TCP slows their agents down.
pub const INBOX: usize = 64;

/// Bytes of gradients among them, room for one of the longest pieces. Likewise when full. It counts in full against the memory that a
/// hub may have beside its models, and twice as much is no faster.
pub const INBOX_CHUNK_BYTES: usize = 1 << 20;

/// Requests of the HTTP interface that wait for the job task. When full, requests wait.
pub const REQUESTS: usize = 32;

/// Batches of records and other writes that wait for the store. When full, records are dropped and counted: a slow disk
/// never delays a round. With a batch each [`STORE_EVERY`] this is almost a minute of a standing disk.
pub const STORE_INBOX: usize = 256;

/// Places of [`STORE_INBOX`] that records leave for changes of a job's state, which are never dropped.
pub const STORE_RESERVED: usize = 16;

/// Records that go to the store together, in one transaction.
pub const STORE_BATCH: usize = 500;

/// Longest time that a record waits for others.
pub const STORE_EVERY: Duration = Duration::from_millis(200);

/// Records of each kind in one page of the HTTP interface.
pub const PAGE_ROWS_MAX: u32 = 5_000;

/// Longest job file.
pub const JOB_FILE_BYTES_MAX: usize = 256 << 10;

/// Longest file of weights that a job begins with. A longer one is refused, by its stated length or on the way.
pub const GIVEN_WEIGHTS_BYTES_MAX: u64 = 2 << 30;

/// Jobs that may wait for their turn. Further ones are refused.
pub const QUEUED_JOBS_MAX: usize = 256;

/// Time between two checkpoints of a running job; also written after each evaluation that is at least
/// [`CHECKPOINT_PAUSE`] after the last.
pub const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);
/// See [`CHECKPOINT_EVERY`].
pub const CHECKPOINT_PAUSE: Duration = Duration::from_secs(10);

/// How often a log line names what a job waits for, while it waits.
pub const WAIT_REPORT_EVERY: Duration = Duration::from_secs(30);

/// Time for the job task, connections and the store to end.
pub const SHUTDOWN_WAIT: Duration = Duration::from_millis(1_700);

/// Time for the broker to answer when the hub starts; after it the hub goes on without, and keeps asking.
pub const BROKER_WAIT: Duration = Duration::from_secs(5);

/// Time for another hub on the same topics to say that it is there.
pub const CLAIM_WAIT: Duration = Duration::from_secs(3);

/// Time for what the broker keeps to arrive after it was asked for.
pub const RETAINED_WAIT: Duration = Duration::from_secs(1);

/// Time until the hub asks again for topics that another hub uses.
pub const CLAIM_RETRY: Duration = Duration::from_secs(60);

/// Commands to agents that wait for a reply. Further ones are refused.
pub const COMMANDS_MAX: usize = 256;

/// Time for an agent's reply to a command.
pub const COMMAND_WAIT: Duration = Duration::from_secs(30);

/// The same for a self-test, which trains.
pub const SELF_TEST_WAIT: Duration = Duration::from_secs(120);

/// Batches of timings that wait to be looked at. When full, further ones are dropped and counted.
pub const TIMINGS_INBOX: usize = 256;
