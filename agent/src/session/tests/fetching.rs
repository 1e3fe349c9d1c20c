//! Files of a data set that come from the hub while the agent gets ready.

use std::time::Duration;

use omnilearn_wire::JobId;
use omnilearn_wire::message::{AgentMessage, HubMessage, JobOffer, ManifestRef};

use super::fake::{FakeFactory, Hub, JOB, Peer, digest, offer};

const FILE: &[u8] = b"ten bytes.";

fn with_data(job: JobId) -> JobOffer {
    let manifest = Some(ManifestRef { digest: digest(FILE), bytes: FILE.len() as u64 });
    JobOffer { job, manifest, ..offer() }
}

/// Waits until the agent asks for a piece, and says from where on.
async fn asked(peer: &mut Peer) -> usize {
    let AgentMessage::FetchData { digest: asked, offset, bytes: 4 } = peer.next().await else {
        panic!("nothing was asked for")
    };
    assert_eq!(asked, digest(FILE));
    offset as usize
}

async fn answer(peer: &mut Peer, offset: usize) {
    let (digest, total) = (digest(FILE), FILE.len() as u64);
    let bytes = &FILE[offset..FILE.len().min(offset + 4)];
    peer.send(&HubMessage::DataChunk { digest, offset: offset as u64, total, bytes }).await;
}

async fn serve(peer: &mut Peer) {
    for expected in [0, 4, 8] {
        let offset = asked(peer).await;
        assert_eq!(offset, expected);
        answer(peer, offset).await;
    }
    assert!(matches!(peer.next().await, AgentMessage::JobReady { .. }));
}

#[tokio::test]
async fn pieces_are_asked_for_one_after_the_other_and_heartbeats_go_on_meanwhile() {
    let mut hub = Hub::new().await;
    hub.heartbeat_ms = 20;
    hub.cache_kernel();
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept().await;
    peer.send(&HubMessage::JobOffer(with_data(JOB))).await;
    let offset = asked(&mut peer).await;
    peer.expect_heartbeats(3).await;
    // What nobody asked for is dropped.
    answer(&mut peer, 8).await;
    answer(&mut peer, offset).await;
    for offset in [4, 8] {
        assert_eq!(asked(&mut peer).await, offset);
        answer(&mut peer, offset).await;
    }
    assert!(matches!(peer.next().await, AgentMessage::JobReady { .. }));
    agent.stop().await;
}

#[tokio::test]
async fn a_fetch_ends_with_its_job_and_the_next_job_is_not_held_up() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept().await;
    peer.send(&HubMessage::JobOffer(with_data(JOB))).await;
    asked(&mut peer).await;
    peer.send(&HubMessage::JobEnded { job: JOB, reason: "stopped".to_owned() }).await;
    peer.send(&HubMessage::JobOffer(with_data(JobId(8)))).await;
    serve(&mut peer).await;
    // Offered in place of one that is being fetched for.
    peer.send(&HubMessage::JobOffer(with_data(JobId(9)))).await;
    asked(&mut peer).await;
    peer.send(&HubMessage::JobOffer(JobOffer { job: JobId(10), ..offer() })).await;
    assert!(matches!(peer.next().await, AgentMessage::JobReady { job: JobId(10), .. }));
    agent.stop().await;
}

#[tokio::test]
async fn a_fetch_ends_with_its_connection_and_begins_anew_on_the_next() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept().await;
    peer.send(&HubMessage::JobOffer(with_data(JOB))).await;
    asked(&mut peer).await;
    drop(peer);
    let mut peer = hub.accept().await;
    peer.send(&HubMessage::JobOffer(with_data(JOB))).await;
    serve(&mut peer).await;
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_ends_at_once_while_it_waits_for_data() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept().await;
    peer.send(&HubMessage::JobOffer(with_data(JOB))).await;
    asked(&mut peer).await;
    let began = tokio::time::Instant::now();
    agent.stop().await;
    assert!(began.elapsed() < Duration::from_secs(2));
}
