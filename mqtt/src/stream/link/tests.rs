//! Two ends of a stream over a network that delays, loses, repeats and cuts, under a clock of the test's own.

use std::collections::VecDeque;

use omnilearn_wire::sampling::SplitMix64;
use proptest::prelude::*;

use super::*;

/// One direction: messages stay in order, as those of one client on one topic do.
#[derive(Default)]
struct Way {
    under_way: VecDeque<(Instant, Bytes)>,
}

#[derive(Clone, Copy, Debug)]
struct Network {
    delay: Duration,
    /// Of 1000 messages, so many are lost, and so many come twice.
    lost: u64,
    repeated: u64,
    /// Mean time between two cuts, after which both clients are connected anew.
    cuts_every: Option<Duration>,
    payload_max: usize,
}

struct End {
    link: Link,
    to_write: Vec<u8>,
    written: usize,
    read: Vec<u8>,
    /// Bytes that the reader takes at once.
    appetite: usize,
    out: Way,
}

impl End {
    fn new(link: Link, to_write: Vec<u8>, appetite: usize) -> End {
        End { link, to_write, written: 0, read: Vec::new(), appetite, out: Way::default() }
    }

    fn act(&mut self, network: &Network, now: Instant, generator: &mut SplitMix64) {
        if self.link.over().is_none() && !self.link.is_opening() {
            self.written += self.link.write(&self.to_write[self.written..]);
            if self.written == self.to_write.len() {
                self.link.finish();
            }
        }
        if let Some(bytes) = self.link.read(self.appetite) {
            self.read.extend_from_slice(&bytes);
        }
        self.link.on_deadline(now, false);
        while let Some(message) = self.link.next_segment(network.payload_max, now) {
            if generator.below(1000) >= network.lost {
                let copies = if generator.below(1000) < network.repeated { 2 } else { 1 };
                for _ in 0..copies {
                    self.out.under_way.push_back((now + network.delay, message.clone()));
                }
            }
        }
    }

    fn receive(&mut self, way: &mut Way, now: Instant) {
        while way.under_way.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, message)) = way.under_way.pop_front() else { return };
            self.link.on_segment(&Segment::decode(&message).unwrap(), now);
        }
    }
}

/// Sends bytes both ways and returns the time that it took.
fn transfer(network: Network, up: Vec<u8>, down: Vec<u8>, appetite: usize, seed: u64) -> Result<Duration, String> {
    let begun = Instant::now();
    let mut now = begun;
    let mut generator = SplitMix64::new(seed);
    let mut agent = End::new(Link::dial(7, now), up.clone(), appetite);
    let mut hub: Option<End> = None;
    let mut next_cut = network.cuts_every.map(|every| now + every);
    while now - begun < Duration::from_secs(3000) {
        agent.act(&network, now, &mut generator);
        if let Some(hub) = &mut hub {
            hub.act(&network, now, &mut generator);
            agent.receive(&mut hub.out, now);
        }
        match &mut hub {
            Some(hub) => hub.receive(&mut agent.out, now),
            None => {
                while agent.out.under_way.front().is_some_and(|(at, _)| *at <= now) {
                    let Some((_, message)) = agent.out.under_way.pop_front() else { break };
                    let segment = Segment::decode(&message).unwrap();
                    match &mut hub {
                        Some(hub) => hub.link.on_segment(&segment, now),
                        None => hub = Some(End::new(Link::accept(&segment, now), down.clone(), appetite)),
                    }
                }
            }
        }
        if next_cut.is_some_and(|cut| cut <= now) {
            next_cut = network.cuts_every.map(|every| now + every.mul_f64(0.5 + generator.below(1000) as f64 / 1000.0));
            agent.out.under_way.clear();
            agent.link.on_reconnected(now);
            if let Some(hub) = &mut hub {
                hub.out.under_way.clear();
                hub.link.on_reconnected(now);
            }
        }
        if let Some(hub) = &hub {
            if let Some(over) = agent.link.over().or(hub.link.over()) {
                return Err(format!("over: {over:?}"));
            }
            if agent.link.is_delivered()
                && hub.link.is_delivered()
                && agent.read.len() == down.len()
                && hub.read.len() == up.len()
            {
                let equal = agent.read == down && hub.read == up;
                return if equal { Ok(now - begun) } else { Err("other bytes arrived".into()) };
            }
        }
        now += Duration::from_millis(1);
    }
    let read = hub.map(|hub| hub.read.len());
    Err(format!("not done: {} of {} and {read:?} of {} bytes read", agent.read.len(), down.len(), up.len()))
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut generator = SplitMix64::new(seed);
    (0..len).map(|_| generator.next_u64() as u8).collect()
}

const SOUND: Network =
    Network { delay: Duration::from_millis(1), lost: 0, repeated: 0, cuts_every: None, payload_max: 60_000 };

#[test]
fn a_sound_network_carries_a_megabyte_both_ways_without_waiting() {
    let took = transfer(SOUND, bytes(1 << 20, 1), bytes(1 << 20, 2), 1 << 20, 0).unwrap();
    assert!(took <= Duration::from_millis(40), "{took:?}");
}

#[test]
fn a_slow_reader_stops_the_other_end_and_nothing_is_sent_twice() {
    let now = Instant::now();
    let mut agent = Link::dial(1, now);
    let open = agent.next_segment(1000, now).unwrap();
    let mut hub = Link::accept(&Segment::decode(&open).unwrap(), now);
    let exchange = |agent: &mut Link, hub: &mut Link, now: Instant| {
        let mut bytes = 0;
        loop {
            let up: Vec<Bytes> = std::iter::from_fn(|| agent.next_segment(10_000, now)).collect();
            let down: Vec<Bytes> = std::iter::from_fn(|| hub.next_segment(10_000, now)).collect();
            bytes += up.iter().map(|message| message.len() - 30).sum::<usize>();
            up.iter().for_each(|message| hub.on_segment(&Segment::decode(message).unwrap(), now));
            down.iter().for_each(|message| agent.on_segment(&Segment::decode(message).unwrap(), now));
            if up.is_empty() && down.is_empty() {
                return bytes;
            }
        }
    };
    exchange(&mut agent, &mut hub, now);
    let data = bytes(3 * WINDOW_BYTES, 3);
    let mut written = agent.write(&data);
    assert_eq!(written, WINDOW_BYTES);
    assert_eq!(agent.write(&data), 0);
    assert_eq!(exchange(&mut agent, &mut hub, now), WINDOW_BYTES);
    // All of it has arrived and is acknowledged, and none of it was read.
    written += agent.write(&data[written..]);
    assert_eq!(written, 2 * WINDOW_BYTES);
    assert_eq!(exchange(&mut agent, &mut hub, now), 0);
    // It asks now and then whether there is room.
    let later = agent.deadline().unwrap();
    agent.on_deadline(later, false);
    assert_eq!(exchange(&mut agent, &mut hub, later), 0);
    let mut read = Vec::new();
    while let Some(bytes) = hub.read(usize::MAX) {
        read.extend_from_slice(&bytes);
    }
    assert_eq!(exchange(&mut agent, &mut hub, later), WINDOW_BYTES);
    assert_eq!(read, data[..WINDOW_BYTES]);
}

#[test]
fn small_answers_carry_the_acknowledgements() {
    let now = Instant::now();
    let mut agent = Link::dial(1, now);
    let open = agent.next_segment(1000, now).unwrap();
    let mut hub = Link::accept(&Segment::decode(&open).unwrap(), now);
    let ack = hub.next_segment(1000, now).unwrap();
    agent.on_segment(&Segment::decode(&ack).unwrap(), now);
    for _ in 0..10 {
        for _ in 0..2 {
            agent.write(b"question");
            let message = agent.next_segment(1000, now).unwrap();
            assert!(agent.next_segment(1000, now).is_none());
            hub.on_segment(&Segment::decode(&message).unwrap(), now);
            assert_eq!(hub.read(100).unwrap(), &b"question"[..]);
            assert!(hub.next_segment(1000, now).is_none(), "no segment for an acknowledgement alone");
            std::mem::swap(&mut agent, &mut hub);
        }
    }
    let due = [agent.deadline(), hub.deadline()].into_iter().flatten().min().unwrap();
    assert!(due <= now + Duration::from_millis(20));
}

#[test]
fn a_slow_link_is_not_loaded_with_repetitions() {
    // Each message takes longer than the first wait before something is sent again.
    let network = Network { delay: Duration::from_millis(1500), ..SOUND };
    let now = Instant::now();
    let (mut agent, mut hub) = (Link::dial(1, now), None::<Link>);
    let (mut up, mut down, mut sent, mut clock) = (VecDeque::new(), VecDeque::new(), 0, now);
    let data = bytes(WINDOW_BYTES, 1);
    let mut written = 0;
    while clock - now < Duration::from_secs(60) {
        if !agent.is_opening() {
            written += agent.write(&data[written..]);
        }
        for (link, way, counts) in [(Some(&mut agent), &mut up, true), (hub.as_mut(), &mut down, false)] {
            let Some(link) = link else { continue };
            link.on_deadline(clock, false);
            while let Some(message) = link.next_segment(network.payload_max, clock) {
                sent += if counts { message.len() - 30 } else { 0 };
                way.push_back((clock + network.delay, message));
            }
        }
        while up.front().is_some_and(|(at, _)| *at <= clock) {
            let segment = Segment::decode(&up.pop_front().unwrap().1).unwrap();
            hub.get_or_insert_with(|| Link::accept(&segment, clock)).on_segment(&segment, clock);
        }
        while down.front().is_some_and(|(at, _)| *at <= clock) {
            agent.on_segment(&Segment::decode(&down.pop_front().unwrap().1).unwrap(), clock);
        }
        clock += Duration::from_millis(10);
    }
    assert_eq!(written, data.len());
    assert!(sent <= data.len() + network.payload_max, "{sent} bytes sent for {}", data.len());
}

#[test]
fn an_unknown_stream_and_nonsense_are_reset() {
    let now = Instant::now();
    let mut link = Link::accept(&Segment::bare(Kind::Open, 1), now);
    let mut ack = Segment::bare(Kind::Ack, 1);
    ack.acknowledged = 5; // nothing was sent
    link.on_segment(&ack, now);
    assert_eq!(link.over(), Some(Over::Violation));
    let reset = Segment::decode(&link.next_segment(1000, now).unwrap()).unwrap();
    assert_eq!(reset.kind, Kind::Reset);
    assert!(link.next_segment(1000, now).is_none());

    let mut other = Link::dial(1, now);
    other.on_segment(&reset, now);
    assert_eq!(other.over(), Some(Over::Reset));
    assert!(other.next_segment(1000, now).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn bytes_arrive_in_order_over_any_network(
        seed in any::<u64>(),
        delay_ms in 1u64..200,
        lost in 0u64..300,
        repeated in 0u64..300,
        cuts_every_ms in proptest::option::of(500u64..5000),
        payload_max in 1000usize..100_000,
        up in 0usize..1_500_000,
        down in 0usize..300_000,
        appetite in 1000usize..100_000,
    ) {
        let network = Network {
            delay: Duration::from_millis(delay_ms),
            lost,
            repeated,
            cuts_every: cuts_every_ms.map(Duration::from_millis),
            payload_max,
        };
        let outcome = transfer(network, bytes(up, seed), bytes(down, seed ^ 1), appetite, seed);
        prop_assert!(outcome.is_ok(), "{:?}", outcome);
    }

    #[test]
    fn any_segments_leave_an_end_that_answers(
        segments in proptest::collection::vec((0u8..6, 0u64..2000, 0u64..2000, any::<u32>(), 0usize..2000), 1..50),
        written in 0usize..3000,
    ) {
        let mut now = Instant::now();
        let mut link = Link::accept(&Segment::bare(Kind::Open, 1), now);
        link.write(&vec![1; written]);
        for (kind, offset, acknowledged, window, payload) in segments {
            let kind = [Kind::Open, Kind::Data, Kind::Ack, Kind::Finish, Kind::Reset, Kind::Again][usize::from(kind)];
            let payload = if kind == Kind::Data { Bytes::from(vec![2; payload]) } else { Bytes::new() };
            link.on_segment(&Segment { kind, connection: 1, offset, acknowledged, window, payload }, now);
            for _ in 0..20 {
                if let Some(message) = link.next_segment(500, now) {
                    prop_assert!(Segment::decode(&message).is_ok());
                }
            }
            link.read(700);
            now += Duration::from_millis(300);
            link.on_deadline(now, false);
        }
    }
}
