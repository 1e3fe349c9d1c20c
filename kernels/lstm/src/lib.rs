//! A language model of long short-term memory (Hochreiter and Schmidhuber 1997): it predicts each next token from those
//! before. 148,736 parameters for bytes, an embedding of 64, one layer and a hidden state of 128.

use omnilearn_kernel_sdk::prelude::*;

settings! {
    /// Number of different tokens; 256 for bytes.
    vocabulary: u32[2..=1_000_000] = 256,
    /// Tokens of a sample.
    tokens: u32[1..=4096] = 64,
    /// Numbers that stand for a token.
    embedding: u32[1..=16_384] = 64,
    /// Numbers in the state of each layer.
    hidden: u32[1..=16_384] = 128,
    /// Layers of memory, each of which reads the state of the one before.
    layers: u32[1..=16] = 1,
}

struct LanguageModel {
    embedding: Embedding,
    lstm: Lstm,
    head: Linear,
}

impl Kernel for LanguageModel {
    type Settings = Settings;

    fn build(settings: Settings, build: &mut Builder) -> Result<Self, String> {
        let Settings { vocabulary, tokens, embedding, hidden, layers } = settings;
        build.input("tokens", DType::I32, &[tokens]);
        build.target("next_tokens", DType::I32, &[tokens]);
        build.metric("correct");
        Ok(LanguageModel {
            embedding: Embedding::new(vocabulary, embedding).build(build, "embedding"),
            lstm: Lstm::new(embedding, hidden).layers(layers).build(build, "lstm"),
            head: Linear::new(hidden, vocabulary).build(build, "fc"),
        })
    }

    fn forward(&self, inputs: Vec<Tensor>, targets: Option<Tensor>, pass: &mut Pass) -> Result<Output, String> {
        let x = self.embedding.forward(&only_input(inputs)?, pass); // [batch, tokens, embedding]
        let x = self.lstm.forward(&x, pass); // [batch, tokens, hidden]
        let logits = self.head.forward(&x, pass); // [batch, tokens, vocabulary]
        Output::judged(logits, targets, pass, loss::next_token)
    }
}

export_kernel!(LanguageModel);
