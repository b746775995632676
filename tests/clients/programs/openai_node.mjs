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
