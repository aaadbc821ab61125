import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

/** Publishes twice to the URL that is given and reads it, with the client of Java's library, which asks for h2c. */
public class Upgrading {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        HttpRequest.Builder there = HttpRequest.newBuilder(URI.create(arguments[0])).header("Content-Type", "text/plain");
        HttpRequest post = there.POST(HttpRequest.BodyPublishers.ofString("from java")).build();
        HttpRequest get = there.GET().build();
        for (HttpRequest request : new HttpRequest[] {post, post, get}) {
            HttpResponse<String> response = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(response.statusCode() + " " + response.version());
        }
    }
}
