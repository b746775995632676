// The official Node client against the server at the first argument; the second is the client's module. Prints one JSON object.
const [baseURL, module] = process.argv.slice(2);
const { default: OpenAI, NotFoundError, BadRequestError } = await import(module);
const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Say three words about the sea. 🌊" }];
const chat = { model, messages, temperature: 0, max_tokens: 24 };
const found = { model };

const plain = await client.chat.completions.create(chat);
found.plain = { text: plain.choices[0].message.content, finish: plain.choices[0].finish_reason, usage: plain.usage };
found.requestId = plain._request_id;

const stream = await client.chat.completions.create({ ...chat, stream: true, stream_options: { include_usage: true } });
found.streamed = { text: "", finish: [], usage: [] };
for await (const chunk of stream) {
  for (const choice of chunk.choices) {
    found.streamed.text += choice.delta.content ?? "";
    if (choice.finish_reason) found.streamed.finish.push(choice.finish_reason);
  }
  if (chunk.usage) found.streamed.usage.push(chunk.usage);
}

const runner = client.chat.completions.stream(chat);
found.helper = { text: (await runner.finalChatCompletion()).choices[0].message.content };

const completion = await client.completions.create({ model, prompt: ["One", "Two"], max_tokens: 4, temperature: 0, n: 2, seed: 7 });
found.completion = completion.choices.map((choice) => [choice.index, choice.finish_reason]);

const asked = { model, input: messages, temperature: 0, max_output_tokens: 24 };
const response = await client.responses.create(asked);
const events = [];
for await (const event of await client.responses.create({ ...asked, stream: true })) events.push(event);
found.response = {
  text: response.output_text, status: response.status, tokens: response.usage.output_tokens,
  read: (await client.responses.retrieve(response.id)).output_text,
  next: (await client.responses.create({ ...asked, input: "Go on.", previous_response_id: response.id })).usage.input_tokens,
};
found.responseStream = {
  text: events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join(""),
  last: events.at(-1).type,
};

const embedded = await client.embeddings.create({ model, input: ["sea", "sky"] }); // the client asks for base64
const floats = await client.embeddings.create({ model, input: ["sea", "sky"], encoding_format: "float" });
const gaps = embedded.data.flatMap((each, i) => each.embedding.map((value, j) => Math.abs(value - floats.data[i].embedding[j])));
found.embeddings = { sizes: embedded.data.map((each) => each.embedding.length), gap: Math.max(...gaps) };

async function failure(work) {
  try {
    await work();
  } catch (error) {
    return {
      is: { NotFoundError: error instanceof NotFoundError, BadRequestError: error instanceof BadRequestError },
      status: error.status, code: error.code, param: error.param, type: error.type, requestId: error.requestID,
    };
  }
  return null;
}
found.noModel = await failure(() => client.chat.completions.create({ ...chat, model: "nobody" }));
found.badValue = await failure(() => client.chat.completions.create({ ...chat, temperature: -1 }));

const left = await client.chat.completions.create({ ...chat, max_tokens: 2000, ignore_eos: true, stream: true });
for await (const chunk of left) if (chunk.choices[0]?.delta.content) break; // closes the connection
found.afterwards = (await client.chat.completions.create(chat)).choices[0].message.content;

process.stdout.write(JSON.stringify(found));
