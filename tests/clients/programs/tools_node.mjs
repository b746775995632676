// Tool calls through the official Node client: arguments are the server, the client's module, and a request as JSON.
const [baseURL, module, request] = process.argv.slice(2);
const { default: OpenAI } = await import(module);
const client = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const plain = await client.chat.completions.create(JSON.parse(request));
const streamed = await client.chat.completions.stream(JSON.parse(request)).finalChatCompletion();
const told = ({ choices: [{ finish_reason, message }] }) => [finish_reason, message.tool_calls.map((call) => [call.type, call.function.name, call.function.arguments])];
process.stdout.write(JSON.stringify({ plain: told(plain), streamed: told(streamed) }));
