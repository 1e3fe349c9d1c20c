//! Whose kernels are run.

use std::fs;
use std::sync::atomic::Ordering;

use omnilearn_wire::message::{AgentMessage, HubMessage, JobOffer};

use super::fake::{FakeFactory, HUB_SECRET, Hub, JOB, KERNEL, Peer, digest, key_pair, offer, signed, start, train};
use crate::trust::Trust;

const OTHER_SECRET: u8 = 2;

/// The offer with signatures by these keys, the hub's first.
fn offer_signed_by(secrets: &[u8]) -> JobOffer {
    JobOffer { signatures: secrets.iter().map(|&secret| signed(secret, KERNEL)).collect(), ..offer() }
}

async fn is_ready(peer: &mut Peer, offer: JobOffer) {
    peer.send(&HubMessage::JobOffer(offer)).await;
    let answer = peer.next().await;
    assert!(matches!(answer, AgentMessage::JobReady { job: JOB, .. }), "{answer:?}");
}

async fn refusal(peer: &mut Peer, offer: JobOffer) -> String {
    peer.send(&HubMessage::JobOffer(offer)).await;
    match peer.next().await {
        AgentMessage::JobDeclined { job: JOB, reason } => reason,
        other => panic!("{other:?} instead of a refusal"),
    }
}

#[tokio::test]
async fn first_key_of_the_hub_is_kept_and_another_one_refused_until_its_line_is_removed() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let factory = FakeFactory::new(8);
    let agent = hub.start(&factory);
    let mut peer = hub.accept().await;
    is_ready(&mut peer, offer()).await;
    let file = hub.cache.path().join("known-hubs");
    let text = fs::read_to_string(&file).unwrap();
    let line = format!("{} {}", hub.config().hub.url(), key_pair(HUB_SECRET).public());
    assert_eq!(text.lines().skip(2).collect::<Vec<_>>(), [line]);

    // Another hub in its place, also with the old key's signature among others.
    for secrets in [&[OTHER_SECRET][..], &[OTHER_SECRET, HUB_SECRET]] {
        let reason = refusal(&mut peer, offer_signed_by(secrets)).await;
        for part in [&key_pair(OTHER_SECRET).public().short(), "line 3 of", file.to_str().unwrap(), "--trust"] {
            assert!(reason.contains(part), "{part:?} is not in {reason:?}");
        }
        peer.send(&train(1)).await;
        assert!(matches!(peer.next().await, AgentMessage::AssignmentFailed { .. }));
    }
    assert_eq!(factory.prepared.load(Ordering::Relaxed), 1);
    is_ready(&mut peer, offer()).await;
    agent.stop().await;

    // What is kept outlives the agent, and so does its removal.
    let agent = hub.start(&factory);
    let mut peer = hub.accept().await;
    refusal(&mut peer, offer_signed_by(&[OTHER_SECRET])).await;
    fs::write(&file, text.lines().take(2).collect::<Vec<_>>().join("\n")).unwrap();
    is_ready(&mut peer, offer_signed_by(&[OTHER_SECRET])).await;
    agent.stop().await;
}

#[tokio::test]
async fn signature_of_another_kernel_or_none_at_all_is_refused_before_a_byte_is_fetched() {
    let hub = Hub::new().await;
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept().await;
    let reason = refusal(&mut peer, JobOffer { signatures: Vec::new(), ..offer() }).await;
    assert!(reason.starts_with("the kernel is not signed"), "{reason}");
    let foreign = signed(HUB_SECRET, b"another component");
    let reason = refusal(&mut peer, JobOffer { signatures: vec![foreign], ..offer() }).await;
    assert!(reason.contains(&key_pair(HUB_SECRET).public().short()), "{reason}");
    let mut changed = signed(HUB_SECRET, KERNEL);
    changed.signature[40] ^= 1;
    refusal(&mut peer, JobOffer { signatures: vec![changed], ..offer() }).await;
    let mut digest = digest(KERNEL);
    digest[0] ^= 1;
    refusal(&mut peer, JobOffer { kernel_digest: digest, ..offer() }).await;
    assert!(!hub.cache.path().join("known-hubs").exists(), "no key is kept that signed nothing");
    agent.stop().await;
}

#[tokio::test]
async fn kernel_in_the_cache_is_not_run_without_a_trusted_signature() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    let factory = FakeFactory::new(8);
    let mut config = hub.config();
    config.trust = Trust::Keys(vec![key_pair(OTHER_SECRET).public()]);
    let agent = start(config, &factory);
    let mut peer = hub.accept().await;
    let reason = refusal(&mut peer, offer()).await;
    for part in [HUB_SECRET, OTHER_SECRET].map(|secret| key_pair(secret).public().short()) {
        assert!(reason.contains(&part), "{reason}");
    }
    assert!(reason.contains("--trust KEY") && reason.contains("omnilearn-hub key show"), "{reason}");
    let mut forged = offer_signed_by(&[HUB_SECRET, OTHER_SECRET]);
    forged.signatures[1].signature = forged.signatures[0].signature;
    let reason = refusal(&mut peer, forged).await;
    assert!(reason.contains("is not of this kernel"), "{reason}");
    assert_eq!(factory.prepared.load(Ordering::Relaxed), 0);
    // The agent is still there, and takes what its author has signed from any hub.
    is_ready(&mut peer, offer_signed_by(&[HUB_SECRET, OTHER_SECRET])).await;
    assert!(!hub.cache.path().join("known-hubs").exists(), "keys that are given are not kept");
    agent.stop().await;
}

#[tokio::test]
async fn refused_offer_does_not_profit_from_a_fetch_that_another_began() {
    let hub = Hub::new().await;
    let factory = FakeFactory::new(8);
    let agent = hub.start(&factory);
    let mut peer = hub.accept().await;
    let fetch = AgentMessage::FetchKernel { digest: digest(KERNEL), offset: 0 };
    peer.send(&HubMessage::JobOffer(offer())).await;
    assert_eq!(peer.next().await, fetch);
    peer.send_kernel(0, 5).await;
    refusal(&mut peer, offer_signed_by(&[OTHER_SECRET])).await;
    peer.send_kernel(5, KERNEL.len()).await;
    peer.send(&HubMessage::JobOffer(offer())).await;
    assert_eq!(peer.next().await, fetch, "and not that the agent is ready");
    assert_eq!(factory.prepared.load(Ordering::Relaxed), 0);
    peer.send_kernel(0, KERNEL.len()).await;
    assert!(matches!(peer.next().await, AgentMessage::JobReady { .. }));
    agent.stop().await;
}

#[tokio::test]
async fn damaged_line_of_the_hub_is_refused_by_its_number() {
    let hub = Hub::new().await;
    hub.cache_kernel();
    fs::write(hub.cache.path().join("known-hubs"), format!("\n{} 12\n", hub.config().hub.url())).unwrap();
    let agent = hub.start(&FakeFactory::new(8));
    let mut peer = hub.accept().await;
    let reason = refusal(&mut peer, offer()).await;
    assert!(reason.starts_with("line 2 of "), "{reason}");
    agent.stop().await;
}
