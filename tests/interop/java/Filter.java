import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.parser.SelectorParser;

/** Evaluates lines of "expression TAB name=value TAB name=value …" with RocketMQ's filter. Prints true, false, null, refused or failed. */
public class Filter {
    public static void main(String[] arguments) throws Exception {
        PrintStream results = System.out;
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            Map<String, Object> properties = new HashMap<>();
            for (int i = 1; i < parts.length; i++) {
                int at = parts[i].indexOf('=');
                properties.put(parts[i].substring(0, at), parts[i].substring(at + 1));
            }
            results.println(evaluate(parts[0], properties));
        }
        results.flush();
    }

    private static String evaluate(String text, Map<String, Object> properties) {
        Expression expression;
        try {
            expression = SelectorParser.parse(text);
        } catch (Throwable error) {
            return "refused";
        }
        try {
            return String.valueOf(expression.evaluate(new EvaluationContext() {
                public Object get(String name) {
                    return properties.get(name);
                }

                public Map<String, Object> keyValues() {
                    return properties;
                }
            }));
        } catch (Throwable error) {
            return "failed";
        }
    }
}
